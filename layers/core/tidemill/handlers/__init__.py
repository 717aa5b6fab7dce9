"""The five functions: each parses its event, calls the core and answers.

They are in the layer, because an update changes a function's code and its layers one after the other.
"""
