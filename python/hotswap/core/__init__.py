"""What all of hotswap stands on: packages, what a module carries, the check on probe inputs, a user's mapping."""
