"""One file per command; each reads its input, calls one library function, prints one table."""
