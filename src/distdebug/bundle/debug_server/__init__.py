"""
What does a server of ``torch.distributed.debug`` tell about a job?
"""
