# mypy: disable-error-code="no-untyped-def, misc, untyped-decorator"
"""What a Gluon kernel says and waits for where launches overlap; see machine.overlaps.

Owns the two instructions, which Triton's own language has and Gluon lacks; knows no kernel. Invariant:
neither is moved or left out by the compiler.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def launch_dependents():
    """The kernel behind may start as soon as every program of this one has come here or has ended."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_dependencies():
    """Waits until the kernel in front has ended and what it wrote can be read."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
