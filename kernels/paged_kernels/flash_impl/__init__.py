"""paged_attention by the flash-attn packages, where they are installed.

Owns what is particular to them: finding them, what they cannot run, and how they are called. Invariant: only
`packages` imports them.
"""
