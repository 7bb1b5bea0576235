"""Measurements. `python -m bench` lists the programs and runs one by its name; what they share is in bench/lib/."""
