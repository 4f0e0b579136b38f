"""One file per family of endpoints. Each is short: validate, call, render."""
