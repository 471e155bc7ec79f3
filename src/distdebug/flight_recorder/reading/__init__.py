"""
How do files from anywhere become columns, safely?

Which files there are (`files`), what is in them (`sandbox`, `decode`,
`extract`), which of them count (`stale`, `choose`), and how they are put
together (`assemble`).
"""
