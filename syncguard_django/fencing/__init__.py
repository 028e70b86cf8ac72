"""The fence guard: the database refuses writes of a holder that has lost its lock to another.

``guard`` protects everything that a transaction writes; ``protect`` does so without a table of its
own if the locks are in the same database; ``FencedModel`` protects single rows, and
``FenceNeverDecreases`` makes the database itself refuse a lower fence. A fence is the token that a
lock gave its holder (``held.fence``): fifteen digits, larger for every later holder, so that
comparing the texts compares the holders. Public names, and nothing else.
"""

from syncguard_django.fencing.fence_constraint import FenceNeverDecreases
from syncguard_django.fencing.fence_field import FenceField
from syncguard_django.fencing.fence_values import NO_FENCE, StaleFence
from syncguard_django.fencing.fenced_model import FencedModel
from syncguard_django.fencing.fenced_queries import FencedQuerySet
from syncguard_django.fencing.key_guard import forget, guard, key_digest
from syncguard_django.fencing.protection import protect

__all__ = [
    "NO_FENCE",
    "FenceField",
    "FenceNeverDecreases",
    "FencedModel",
    "FencedQuerySet",
    "StaleFence",
    "forget",
    "guard",
    "key_digest",
    "protect",
]
