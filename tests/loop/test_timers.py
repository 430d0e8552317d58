# SPDX-License-Identifier: GPL-2.0-only
"""call_later, call_at and loop.time(): never early, in order, exactly removed, below 1 ms.

Every duration has a strict lower bound, because an early timer is always wrong. It has an upper
bound only where the bound distinguishes two behaviours: whether a loop rounds its waits up to
milliseconds, and whether a sleeping loop notices a new deadline.
"""

import asyncio
import gc
import math
import random
import sys
import time

import pytest
import support

#: asyncio runs a timer one clock resolution early, by design.
RESOLUTION = time.get_clock_info("monotonic").resolution


class TestClock:
    def test_time_is_time_monotonic(self, loop):
        for _ in range(100):
            before = time.monotonic()
            now = loop.time()
            after = time.monotonic()
            assert before <= now <= after

    def test_time_moves_on_inside_an_iteration(self, loop):
        seen = []

        def look():
            seen.append(loop.time())
            time.sleep(0.005)
            seen.append(loop.time())

        loop.call_soon(look)
        support.turn(loop)
        assert seen[1] - seen[0] >= 0.005

    def test_a_delay_counts_from_the_call_not_from_the_iteration(self, loop):
        seen = []

        def schedule():
            time.sleep(0.01)
            started = time.monotonic()
            loop.call_later(0.005, lambda: seen.append(time.monotonic() - started))
            loop.call_later(0.005, loop.stop)

        loop.call_soon(schedule)
        loop.run_forever()
        support.turn(loop, 2)
        assert seen[0] >= 0.005 - RESOLUTION

    @pytest.mark.parametrize("of", ["the loop", "its class"])
    def test_a_clock_of_ones_own_moves_the_timers(self, loop, monkeypatch, of):
        """Libraries that let time pass faster in tests replace time(); the timers follow it."""
        now = loop.time()
        calls = []
        loop.call_later(1000, calls.append, 1)
        with monkeypatch.context() as patch:
            if of == "the loop":
                patch.setattr(loop, "time", lambda: now + 2000)
            else:
                patch.setattr(type(loop), "time", lambda self: now + 2000)
            later = loop.call_later(1000, print)
            assert later.when() == now + 3000
            later.cancel()
            support.turn(loop, 2)
        assert calls == [1]
        assert loop.time() < now + 1000


class TestNeverEarly:
    @pytest.mark.parametrize("delay", [0.0, 1e-9, 1e-6, 0.0002, 0.00099, 0.001, 0.0015, 0.02])
    def test_call_later(self, loop, delay):
        early = []

        def fired(deadline, left):
            now = time.monotonic()
            if now + RESOLUTION < deadline:
                early.append(deadline - now)
            if left:
                schedule(left - 1)
            else:
                loop.stop()

        def schedule(left):
            loop.call_later(delay, fired, time.monotonic() + delay, left)

        schedule(20)
        loop.run_forever()
        assert not early

    def test_call_at(self, loop):
        late_by = []

        def fired(when):
            late_by.append(time.monotonic() - when)
            if len(late_by) == 100:
                loop.stop()

        chance = random.Random(1)
        start = loop.time()
        for _ in range(100):
            when = start + chance.random() * 0.03
            handle = loop.call_at(when, fired, when)
            assert handle.when() == when
        loop.run_forever()
        assert min(late_by) >= -RESOLUTION

    async def test_sleep_and_timeouts(self, loop):
        for delay in (0.0003, 0.001, 0.0125):
            start = time.monotonic()
            await asyncio.sleep(delay)
            assert time.monotonic() - start >= delay - RESOLUTION
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay):
                    await asyncio.sleep(1000)
            assert time.monotonic() - start >= delay - RESOLUTION
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), delay)
            assert time.monotonic() - start >= delay - RESOLUTION


class TestPrecision:
    # asyncio rounds a wait up to a whole millisecond.
    @pytest.mark.mgloop_only
    def test_timers_below_a_millisecond_are_real(self, loop, run):
        async def shortest():
            best = math.inf
            for _ in range(100):
                start = time.monotonic()
                await asyncio.sleep(0.0002)
                best = min(best, time.monotonic() - start)
            return best

        assert 0.0002 <= run(shortest()) < 0.0009

    # asyncio lacks counters, and wakes up once per millisecond.
    @pytest.mark.mgloop_only
    def test_timers_that_are_close_to_each_other_run_together(self, loop):
        """Separately they would cost the loop a sleep each: 2,000 in 20 ms."""
        number = 2000
        early = []
        left = number

        def fire(when):
            nonlocal left
            left -= 1
            if loop.time() < when:
                early.append(when)
            if left == 0:
                loop.stop()

        begun = loop.time() + 0.01
        for i in range(number):
            when = begun + i * 10e-6
            loop.call_at(when, fire, when)
        before = loop.stats().polls
        loop.run_forever()
        assert not early
        # At most one per 50 us, and some for the loop's other work.
        assert loop.stats().polls - before < 500

    def test_a_deadline_that_comes_nearer_while_waiting(self, loop, left, right):
        """A descriptor's callback adds a timer that is due before the one being waited for."""
        fired = []

        def on_readable():
            loop.remove_reader(left)
            loop.call_later(0.005, fired.append, "near")
            loop.call_later(0.010, loop.stop)

        far = loop.call_later(1000, fired.append, "far")
        loop.add_reader(left, on_readable)
        right.send(b"x")
        loop.run_forever()
        far.cancel()
        assert fired == ["near"]

    def test_cancelling_the_nearest_deadline_keeps_the_next(self, loop):
        fired = []
        near = loop.call_later(0.005, fired.append, "near")
        loop.call_later(0.010, fired.append, "next")
        loop.call_later(0.015, loop.stop)
        near.cancel()
        loop.run_forever()
        assert fired == ["next"]

    @pytest.mark.parametrize("delay", [math.inf, 1e300, 1e18, 1e10, 2**31, 2**31 / 1000, 10**12])
    def test_deadlines_beyond_all_limits(self, loop, delay):
        fired = []
        handle = loop.call_later(delay, fired.append, "far")
        loop.call_later(0.002, loop.stop)
        loop.run_forever()
        assert not fired
        handle.cancel()

    # It breaks the order of asyncio's heap.
    @pytest.mark.mgloop_only
    def test_a_delay_that_is_not_a_number(self, loop):
        """Whatever happens to that timer, the others run."""
        fired = []
        handles = [loop.call_later(math.nan, print) for _ in range(3)]
        for number in range(20):
            loop.call_later(0.001 * number, fired.append, number)
        loop.call_later(0.05, loop.stop)
        loop.run_forever()
        assert sorted(fired) == list(range(20))
        for handle in handles:
            handle.cancel()

    def test_a_deadline_behind_one_that_was_cancelled(self, loop):
        """The wait may end at the cancelled timer; it must then continue, and end at the next."""
        started = loop.time()
        for _ in range(20):
            loop.call_later(0.005, pytest.fail, "it was cancelled").cancel()
            loop.call_later(0.02, loop.stop)
            loop.call_later(0.015, pytest.fail, "so was this").cancel()
            loop.run_forever()
            assert loop.time() - started >= 0.02 - RESOLUTION
            started = loop.time()

    def test_deadlines_armed_and_cancelled_between_events(self, loop, left, right):
        """Servers use timeouts this way: each is replaced by a later one and never fires."""
        received = []
        deadline = loop.call_later(0.02, pytest.fail, "a later one took its place")

        def read():
            nonlocal deadline
            deadline.cancel()
            received.append(right.recv(1))
            deadline = loop.call_later(0.02 if len(received) < 200 else 0.005, loop.stop)
            if len(received) < 200:
                left.send(b"x")

        loop.add_reader(right, read)
        left.send(b"x")
        loop.run_forever()
        loop.remove_reader(right)
        assert len(received) == 200
        assert 0 <= loop.time() - deadline.when() + RESOLUTION < 5

    def test_due_while_the_loop_never_waits(self, loop):
        """The deadline was known to a wait; it passes while there is always a ready callback."""
        due = []
        loop.call_later(0.03, due.append, True)
        loop.call_later(0.005, spin := lambda: due or loop.call_soon(spin))
        ends = time.monotonic() + 5
        while not due and time.monotonic() < ends:
            loop.call_later(0.001, loop.stop)
            loop.run_forever()
        assert due == [True]

    def test_a_far_deadline_alone_does_not_keep_the_loop_from_events(self, loop, left, right):
        handle = loop.call_later(1e18, print)
        loop.add_reader(left, loop.stop)
        right.send(b"x")
        loop.run_forever()
        loop.remove_reader(left)
        handle.cancel()


class TestOrder:
    def test_by_deadline_not_by_call(self, loop):
        order = []
        now = loop.time()
        for milliseconds in (7, 1, 9, 3, 5):
            loop.call_at(now + milliseconds / 1000, order.append, milliseconds)
        loop.call_at(now + 0.010, loop.stop)
        loop.run_forever()
        assert order == [1, 3, 5, 7, 9]

    def test_by_deadline_also_when_all_are_overdue(self, loop):
        order = []
        now = loop.time()
        deadlines = [now - offset / 1000 for offset in range(500)]
        random.Random(2).shuffle(deadlines)
        for when in deadlines:
            loop.call_at(when, order.append, when)
        support.turn(loop, 2)
        assert order == sorted(deadlines)

    # asyncio's heap is not stable.
    @pytest.mark.mgloop_only
    def test_equal_deadlines_keep_the_order_of_the_calls(self, loop):
        order = []
        when = loop.time()
        handles = [loop.call_at(when, order.append, number) for number in range(1000)]
        for number in range(0, 1000, 7):
            handles[number].cancel()
        support.turn(loop, 2)
        assert order == [number for number in range(1000) if number % 7]

    def test_ready_callbacks_come_before_timers_that_fall_due(self, loop):
        order = []
        loop.call_at(loop.time() - 1, order.append, "timer")
        loop.call_soon(order.append, "soon")
        support.turn(loop, 2)
        assert order == ["soon", "timer"]

    def test_zero_and_negative_delays_run_in_the_next_iteration(self, loop):
        order = []

        def schedule():
            loop.call_later(0, order.append, "zero")
            loop.call_later(-1, order.append, "negative")
            order.append("scheduled")

        loop.call_soon(schedule)
        support.turn(loop)
        assert order == ["scheduled"]
        support.turn(loop, 2)
        assert order == ["scheduled", "negative", "zero"]

    def test_a_timer_that_reschedules_itself_does_not_starve_the_rest(self, loop):
        counts = {"zero": 0, "soon": 0}

        def zero():
            counts["zero"] += 1
            if not counts["soon"]:
                loop.call_later(0, zero)

        loop.call_later(0, zero)
        loop.call_later(0.005, counts.update, {"soon": 1})
        loop.call_later(0.010, loop.stop)
        loop.run_forever()
        assert counts["soon"] == 1
        assert counts["zero"] > 1


class TestCancel:
    def test_before_it_is_due(self, loop):
        fired = []
        handle = loop.call_later(0.001, fired.append, "cancelled")
        assert not handle.cancelled()
        handle.cancel()
        assert handle.cancelled()
        loop.call_later(0.005, loop.stop)
        loop.run_forever()
        assert not fired

    def test_after_it_has_run(self, loop):
        fired = []
        handle = loop.call_later(0, fired.append, "ran")
        support.turn(loop, 2)
        handle.cancel()
        support.turn(loop)
        assert fired == ["ran"]
        assert handle.cancelled()

    def test_by_a_timer_of_the_same_iteration(self, loop):
        fired = []
        now = loop.time()
        handles = []
        loop.call_at(now - 2, lambda: handles[0].cancel())
        handles.append(loop.call_at(now - 1, fired.append, "cancelled"))
        loop.call_at(now - 0.5, fired.append, "kept")
        support.turn(loop, 2)
        assert fired == ["kept"]

    def test_a_timer_that_cancels_itself(self, loop):
        fired = []
        handles = []

        def cancel_itself(*args):
            handles.pop().cancel()
            gc.collect()
            fired.append(args)

        handles.append(loop.call_later(0, cancel_itself, bytearray(10)))
        support.turn(loop, 2)
        assert fired == [(bytearray(10),)]

    def test_a_timer_that_cancels_all_others(self, loop):
        fired = []
        handles = []
        now = loop.time()

        def cancel_all():
            for handle in handles:
                handle.cancel()
            fired.append("first")

        loop.call_at(now - 1, cancel_all)
        for number in range(100):
            handles.append(loop.call_at(now - 0.5 + number / 100, fired.append, number))
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert fired == ["first"]

    # asyncio removes cancelled timers only occasionally.
    @pytest.mark.mgloop_only
    def test_removes_the_handle_from_the_heap(self, loop):
        handles = [loop.call_later(1000 + number, print) for number in range(50)]
        random.Random(3).shuffle(handles)
        for handle in handles:
            references = sys.getrefcount(handle)
            handle.cancel()
            assert sys.getrefcount(handle) == references - 1
            handle.cancel()
            assert sys.getrefcount(handle) == references - 1

    def test_a_destructor_may_schedule_and_cancel(self, loop):
        fired = []

        class Token:
            def __init__(self, other):
                self.other = other

            def __del__(self):
                self.other.cancel()
                loop.call_later(0, fired.append, "from the destructor")

        others = [loop.call_later(0.001, fired.append, "cancelled") for _ in range(10)]
        handles = [loop.call_later(1000, print, Token(other)) for other in others]
        for handle in handles:
            handle.cancel()
        loop.call_later(0.01, loop.stop)
        loop.run_forever()
        assert fired == ["from the destructor"] * 10


class TestMany:
    def test_random_deadlines_and_cancellations(self, loop):
        chance = random.Random(4)
        start = loop.time()
        fired = []
        live = {}
        for number in range(20000):
            when = start + chance.random() * 0.2
            live[number] = loop.call_at(when, fired.append, (when, number))
            if number % 3 == 0:
                live.pop(chance.choice(list(live)) if number % 300 == 0 else number).cancel()
        expected = {(handle.when(), number) for number, handle in live.items()}
        loop.call_at(start + 0.21, loop.stop)
        loop.run_forever()
        assert set(fired) == expected
        assert [when for when, _ in fired] == sorted(when for when, _ in fired)

    @pytest.mark.parametrize("later", [0, 1, 2000, 60_000])
    @pytest.mark.parametrize("due", [100, 600, 5000])
    def test_due_together_while_others_are_not(self, loop, due, later):
        chance = random.Random(due + later)
        now = loop.time()
        fired, expected, handles = [], [], []
        special = [0.0, -1.0, -1e300, -math.inf, 5e-324, now, math.nextafter(now, 0)]
        for number in range(due + later):
            when = now - chance.random() * 10 ** chance.randint(-9, 3)
            if number < len(special):
                when = special[number]
            elif number >= due:
                when = now + 3600 + chance.random()
            handles.append(loop.call_at(when, fired.append, when))
            if number % 7 == 6:
                handles.pop().cancel()
            elif number < due:
                expected.append(when)
        support.turn(loop, 2)
        assert fired == sorted(expected)
        # The remaining timers are still a heap.
        moved = loop.time() + 7200
        loop.time = lambda: moved
        rest = handles[len(expected) :]
        for handle in rest[::3]:
            handle.cancel()
        support.turn(loop, 2)
        del loop.time
        assert fired[len(expected) :] == sorted(
            handle.when() for handle in rest if not handle.cancelled()
        )

    # asyncio's heap is not stable.
    @pytest.mark.mgloop_only
    def test_equal_deadlines_of_many_keep_the_order_of_the_calls(self, loop):
        order = []
        chance = random.Random(6)
        whens = chance.choices([-1.0, -0.0, 0.0, loop.time()], k=4000)
        for number, when in enumerate(whens):
            loop.call_at(when, order.append, number)
        support.turn(loop, 2)
        assert order == sorted(range(4000), key=whens.__getitem__)  # sorted() is stable

    def test_cancelled_while_others_fire(self, loop):
        chance = random.Random(5)
        start = loop.time()
        live = {}
        fired = set()

        def fire(number):
            del live[number]
            fired.add(number)
            for _ in range(2):
                if live:
                    other = next(iter(live))
                    live.pop(other).cancel()
            if len(fired) < 2000 and number < 4000:
                schedule(number + 4000)
            if not live:
                loop.stop()

        def schedule(number):
            live[number] = loop.call_at(start + chance.random() * 0.05, fire, number)

        for number in range(4000):
            schedule(number)
        loop.run_forever()
        assert not live
        assert len(fired) > 1000

    def test_one_hundred_thousand_far_timers_are_dropped_by_close(self, loop_factory):
        loop = loop_factory()
        for number in range(100_000):
            loop.call_later(1000 + number % 97, print)
        loop.call_later(0.001, loop.stop)
        loop.run_forever()
        loop.close()

    async def test_many_sleeping_tasks(self, loop):
        async def sleep(number):
            await asyncio.sleep(number % 13 / 1000)
            return number

        assert await asyncio.gather(*(sleep(number) for number in range(3000))) == list(range(3000))


class TestTimerHandle:
    def test_is_a_timer_handle_even_without_delay(self, loop):
        for handle in (
            loop.call_later(0, print),
            loop.call_later(-1, print),
            loop.call_later(1, print),
            loop.call_at(0, print),
        ):
            assert isinstance(handle, asyncio.TimerHandle)
            assert isinstance(handle, asyncio.Handle)
            assert "when=" in repr(handle)
            handle.cancel()

    def test_when(self, loop):
        now = loop.time()
        handle = loop.call_later(10, print)
        assert now + 10 <= handle.when() <= loop.time() + 10
        assert isinstance(handle.when(), float)
        at = loop.call_at(now + 12.5, print)
        assert at.when() == now + 12.5
        handle.cancel()
        at.cancel()
        assert at.when() == now + 12.5

    def test_comparison(self, loop):
        now = loop.time()

        def callback():
            pass

        early = loop.call_at(now + 100, callback)
        twin = loop.call_at(now + 100, callback)
        late = loop.call_at(now + 200, callback)
        assert early < late
        assert early <= late
        assert late > early
        assert late >= early
        assert not late < early
        assert not late <= early
        assert early <= twin
        assert early >= twin
        assert not early < twin
        assert not early > twin
        assert early == twin
        assert early != late
        twin.cancel()
        assert early != twin
        early.cancel()
        late.cancel()

    def test_comparison_with_something_else(self, loop):
        handle = loop.call_later(100, print)
        assert handle != 1
        assert handle != "text"
        for compare in (
            lambda: handle < 1,
            lambda: handle <= 1,
            lambda: handle > 1,
            lambda: handle >= 1,
        ):
            with pytest.raises(TypeError):
                compare()
        handle.cancel()

    def test_hash(self, loop):
        handle = loop.call_later(100, print)
        assert hash(handle) == hash(handle.when())
        assert handle in {handle}
        handle.cancel()

    def test_the_time_is_the_number_that_was_given(self, loop):
        whole, fraction = loop.call_at(10**9, print), loop.call_at(1e9, print)
        assert type(whole.when()) is int
        assert type(whole._when) is int
        assert type(fraction.when()) is float
        whole.cancel()
        fraction.cancel()

    def test_sorting(self, loop):
        now = loop.time()
        handles = [loop.call_at(now + number, print) for number in (3, 1, 2)]
        assert [handle.when() - now for handle in sorted(handles)] == pytest.approx([1, 2, 3])
        for handle in handles:
            handle.cancel()

    @pytest.mark.parametrize("delay", [None, "1", [], object()])
    def test_a_delay_of_the_wrong_type(self, loop, delay):
        with pytest.raises(TypeError):
            loop.call_later(delay, print)

    def test_a_deadline_of_none(self, loop):
        with pytest.raises(TypeError):
            loop.call_at(None, print)

    @pytest.mark.parametrize("delay", [0, 1, True, 0.5])
    def test_delays_of_any_number_type(self, loop, delay):
        now = loop.time()
        handle = loop.call_later(delay, print)
        assert handle.when() >= now + delay
        handle.cancel()

    def test_context_and_arguments(self, loop):
        got = []
        for count in range(7):
            loop.call_later(0, lambda *args: got.append(args), *range(count))
        support.turn(loop, 2)
        assert sorted(got) == [tuple(range(count)) for count in range(7)]
        with pytest.raises(TypeError):
            loop.call_later(0, print, flavour="unknown")
        with pytest.raises(TypeError):
            loop.call_later(0)
        with pytest.raises(TypeError):
            loop.call_at(0)
