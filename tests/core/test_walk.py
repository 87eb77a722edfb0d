"""The walk over lines gives the order of the naive walk, whatever is granted, passed by, kept or added on the way."""

import os
import random
from typing import Any

from libs.core.scheduling.decider import Decider
from libs.core.scheduling.order import Order
from libs.core.scheduling.policy import Policy
from libs.core.scheduling.precedence import OrderKnobs, OrderRule, Precedence
from libs.core.state.model import State
from schemas import inbox
from schemas.queues import Queue
from tests.core.builders import _Item, job, node
from tests.core.walk_oracle import NaiveOrder

POOLS = int(os.environ.get("RANDOM_POOLS", "20"))
TEAMS, USERS, MODELS, SIZES = ("red", "blue", "green"), ("", "ann", "bob"), ("H100", "A10"), (1, 2, 3, 4)
NODES, PER_NODE, JOBS, WALKS = 6, 4, 60, 2


def pool(chance: random.Random) -> tuple[State, int, Policy]:
    """A pool with queues or without, in any order. Jobs of many shapes, teams and users run and wait, some for devices that are
    held for them."""
    rule = chance.choice((None, None, *OrderRule))
    precedence = Precedence(rule, OrderKnobs(age_s=chance.choice((3, 1000))))
    policy = Policy(precedence=precedence, reserve_after_us=chance.choice((1, 3_000_000, 1 << 40)))
    messages: list[Any] = [
        inbox.NodeRegistered(
            incarnation=1, inventory=node(f"n{i}", devices=PER_NODE, model=MODELS[i % 2]), lease_s=3600
        )
        for i in range(NODES)
    ]
    if chance.random() < 0.6:
        queues = [Queue(name="all", guaranteed={"H100": 12_000})]
        for team in TEAMS:
            guaranteed, weight_milli = {"H100": 1000 * chance.randrange(5)}, chance.choice((0, 500, 1000))
            queues.append(Queue(name=team, parent="all", guaranteed=guaranteed, weight_milli=weight_milli))
        order = chance.choice((None, "fifo", "fair-share", "shortest-remaining"))
        half_life_s = chance.choice((None, 60))
        messages.append(
            inbox.ApplyQueues(version=1, queues=tuple(queues), order=order, half_life_s=half_life_s, user="olga")
        )
    decider, t_us = Decider(policy=policy), 0
    for number in range(1, JOBS + 1):
        types = (chance.choice(MODELS),) if chance.random() < 0.6 else ()
        team, priority = chance.choice(TEAMS), chance.choice((0, 0, 0, 50))
        came = job(f"j{number}", chance.choice(SIZES), team=team, priority=priority, types=types)
        messages.append(came.model_copy(update={"user": chance.choice(USERS), "submitted_us": t_us + 1}))
        if number % 15 == 0:
            t_us += chance.choice((1000, 2_000_000))
            decider.decide([_Item(number, t_us, message) for message in messages], t_us)
            messages.clear()
    assert not decider.faults
    state = decider.state
    waiting = sorted(one.id for queue in state.queues.values() for one in map(state.jobs.__getitem__, queue))
    for job_id in chance.sample(waiting, chance.randrange(4)):
        state.holds[job_id] = tuple(chance.sample(state.fleet.devices.names, 4))
    return state, t_us, policy


def walked(order: Order, state: State, chance: random.Random) -> list[str]:
    """The ids that a walk gives while who asks does anything with them."""
    found: list[str] = []
    keys = sorted(state.queues, key=str)
    order.add(keys[::2])
    while len(found) < 2 * JOBS and (one := order.next()) is not None:
        found.append(one.id)
        what = chance.random()
        if what < 0.55:
            order.granted(one, chance.sample(range(NODES * PER_NODE), one.shape.devices))
        elif what < 0.85:
            order.passed(one)
        if what > 0.8:
            order.add(chance.sample(keys, min(3, len(keys))))
        if what > 0.985:
            order.restart()
    return found


def test_lines_are_walked_in_the_naive_walks_order() -> None:
    lengths = 0
    for seed in range(POOLS):
        state, t_us, policy = pool(random.Random(seed))
        for walk in range(WALKS):
            naive, lines = (made(state, t_us, policy, ()) for made in (NaiveOrder, Order))
            expected = walked(naive, state, random.Random(WALKS * seed + walk))
            assert walked(lines, state, random.Random(WALKS * seed + walk)) == expected, f"pool {seed}, walk {walk}"
            lengths += len(expected)
    assert lengths > 10 * POOLS * WALKS, "the pools had nothing to walk over"
