"""Simulation of the policies on a virtual clock: decisions come from the real code, everything else is modelled."""
