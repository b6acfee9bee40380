"""What a run would take, told before it starts: a step on tensors that hold nothing, and what follows from it."""
