"""Which kernel each layer of a model runs: decided (plan.py), put in and taken out (bind.py), reported (report.py)."""
