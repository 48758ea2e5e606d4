"""A page about a plan: HTML with style, script, pictures and data folded in."""
