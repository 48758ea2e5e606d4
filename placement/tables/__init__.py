"""Tables on embedding servers: what a shard takes, which rows and columns go where, and the least that servers must do."""
