"""The graph of waits: strongly connected components against a brute-force search."""

from __future__ import annotations

import random

from stepscope.analyses.communication.wait_graph import components


def reach(edges, start):
    found, queue = {start}, [start]
    while queue:
        new = set(edges.get(queue.pop(), ())) - found
        found |= new
        queue += new
    return found


def test_components_are_the_ranks_that_reach_each_other_and_come_after_those_they_lead_to():
    rng = random.Random(5)
    for _ in range(50):
        n = rng.randint(1, 8)
        edges = {i: [j for j in range(n) if rng.random() < 0.2 and i != j] for i in range(n)}
        reached = {i: reach(edges, i) for i in range(n)}
        made = components(edges, range(n))
        assert sorted(x for one in made for x in one) == list(range(n))
        for place, one in enumerate(made):
            assert set(one) == {j for j in range(n) if j in reached[one[0]] and one[0] in reached[j]}
            before = {x for earlier in made[: place + 1] for x in earlier}
            assert all(reached[x] <= before for x in one)
