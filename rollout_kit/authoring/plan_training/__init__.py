"""How much memory a training takes: models, gradients, optimizer, activations."""
