"""Signatures of functions in libraries: what their arguments are called, and how attn-spec calls and reads them."""
