"""WHAT is trained, on WHAT: operator graph, embedding tables, model presets and readers, cluster, units."""
