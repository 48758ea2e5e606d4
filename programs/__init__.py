"""WHAT EACH NODE DOES: the net transformation, the instruction set, the verifier and the timeline."""
