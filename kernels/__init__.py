"""The operations whose speed matters. They know tensors, never sequences."""
