"""Which layers of a model our packages compute, one kind of layer a file. registered.py has all of them."""
