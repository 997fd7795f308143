"""Whatever comes and goes: nobody is lost, nobody is taken twice, each class keeps its order, and bounds hold."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from apparate_worker.admission import HIGH, LOW
from apparate_worker.batching import Batcher
from apparate_worker.errors import NotReady, WorkerError
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Pending
from apparate_worker.policies import Aimd, Deadline, SizeAge
from support.queue_simulation import Device, Load, Outcome, Ticket, simulate, take

MAX_BATCH, MAX_QUEUE, LOW_SHARE = 4, 20, 0.5


def place(item):
    return item.request.inputs["number"], item.index


class Queue(RuleBasedStateMachine):
    """Requests of both classes come, leave, and are taken, while time goes on."""

    policy = "sizeAge"
    delay_s = 0.0

    def __init__(self):
        super().__init__()
        self.now = 0.0
        times = PassTimes([0.1 * n for n in range(MAX_BATCH + 1)])
        policy = {
            "sizeAge": lambda: SizeAge(times, MAX_BATCH, self.delay_s),
            "aimd": lambda: Aimd(times, MAX_BATCH, self.delay_s, 0.5),
            "deadline": lambda: Deadline(times, MAX_BATCH, self.delay_s, 1.0),
        }[self.policy]()
        self.batcher = Batcher(
            max_batch=MAX_BATCH,
            max_delay_s=self.delay_s,
            max_queue=MAX_QUEUE,
            times=times,
            policy=policy,
            low_share=LOW_SHARE,
            clock=lambda: self.now,
        )
        self.waiting, self.seen, self.count = [], set(), 0

    @rule(
        priority=st.sampled_from([HIGH, LOW]),
        count=st.integers(1, 6),
        within_s=st.sampled_from([0.05, 0.4, 2, math.inf]),
    )
    def put(self, priority, count, within_s):
        self.count += 1
        number, deadline = {"number": self.count}, self.now + within_s
        request = Pending(number, count, Ticket(Outcome()), self.now, priority=priority, deadline=deadline)
        before = [one for one in self.waiting if one.priority == LOW]
        try:
            self.batcher.put(request)
        except WorkerError:
            assert all(not one.future.done() for one in before)  # nobody gave way in vain
            return
        shed = [one for one in self.waiting if one.future.done()]
        assert priority == HIGH or not shed
        assert all(one.priority == LOW and not one.taken for one in shed)
        self.waiting = [one for one in self.waiting if not one.future.done()] + [request]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data):
        self.batcher.drop(gone := data.draw(st.sampled_from(self.waiting)))
        self.batcher.drop(gone)
        self.waiting.remove(gone)

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0]))
    def wait(self, seconds):
        self.now += seconds

    @rule()
    def take(self):
        most, due = self.batcher.policy.most, self.batcher.due()
        batch = take(self.batcher, lambda: self.now)
        assert len(batch) <= max(most, self.batcher.policy.most)
        assert bool(batch) == due
        for priority in (HIGH, LOW):
            order = [place(item) for item in batch if item.request.priority == priority]
            assert order == sorted(order)
        for item in batch:
            assert place(item) not in self.seen
            assert not item.request.dropped and not item.request.future.done()
            self.seen.add(place(item))
        if batch:
            self.now += 0.1 * len(batch)
            self.batcher.took(len(batch), 0.1 * len(batch))
        late = [one for one in self.waiting if one.dropped]  # left behind: their timers answer them
        assert all(one.deadline < math.inf for one in late)
        self.waiting = [one for one in self.waiting if one.taken < one.count and not one.dropped]

    @invariant()
    def counts_are_right_and_bounds_hold(self):
        of = [sum(one.count - one.taken for one in self.waiting if one.priority == p) for p in (HIGH, LOW)]
        assert self.batcher.waiting == sum(of) <= MAX_QUEUE
        assert of[LOW] <= MAX_QUEUE * LOW_SHARE

    def teardown(self):
        while self.batcher.waiting:
            self.now += 10.0
            self.take()
        assert self.waiting == []
        assert self.batcher.close() == []
        with pytest.raises(NotReady):
            self.batcher.put(Pending({}, 1, Ticket(Outcome()), self.now))


class QueueByDeadlines(Queue):
    policy = "deadline"


class QueueByAimd(Queue):
    policy, delay_s = "aimd", 0.05


settings.register_profile("queue", max_examples=60, stateful_step_count=40, deadline=None)
for machine in (Queue, QueueByDeadlines, QueueByAimd):
    machine.TestCase.settings = settings.get_profile("queue")
TestQueue, TestQueueByDeadlines, TestQueueByAimd = Queue.TestCase, QueueByDeadlines.TestCase, QueueByAimd.TestCase


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    policy=st.sampled_from(["sizeAge", "aimd", "deadline"]),
    leave=st.booleans(),
    delay_s=st.sampled_from([0.0, 0.01]),
)
def test_every_request_has_one_end_and_no_policy_stops_while_somebody_waits(seed, policy, leave, delay_s):
    load = Load(shares=(0.4, 3.0), turn_s=0.1, seconds=1.0)
    found = simulate(policy, load, Device(), max_delay_s=delay_s, leave=leave, seed=seed)
    for one in (found.high, found.low):
        assert one.asked == one.in_time + one.late + one.refused + one.given_up
