"""The ops that batch norms in primitives are spelled with: a record for each.

Importing this package registers them.
"""

from bngrad.passes.imports.decomposed.ops import arithmetic, choices, integers, moves, reductions

__all__ = ["arithmetic", "choices", "integers", "moves", "reductions"]
