"""Low-bit linears and convolutions: three products of a layer, each with operands of its own format."""
