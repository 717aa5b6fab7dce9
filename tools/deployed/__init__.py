"""``make deployed``: the stack on an emulator of AWS, deployed, used, updated and deleted."""
