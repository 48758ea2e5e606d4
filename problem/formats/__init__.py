"""Formats of others: models, clusters, placements and traces as other tools write them.

One module per format; :mod:`problem.formats.registry` knows which is which by content. What cannot be read is refused in
one line that says what is not supported. docs/formats.md lists them all.
"""
