"""Instructions given MEANING: kernels, processes, transports, sync, supervisor, and the oracle they are checked against."""
