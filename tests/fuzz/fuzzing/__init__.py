"""
Does every parser stay calm, whatever it is fed?

What a target is stands in `target`, what is demanded of all of them in
`demand`, and the targets themselves in `targets`, a module for each room.
"""
