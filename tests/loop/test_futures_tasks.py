# SPDX-License-Identifier: GPL-2.0-only
"""The loop's support for futures, tasks and asynchronous generators, from creation to shutdown.

Futures and tasks are the standard library's own. The tests cover the loop's part: the factories and
their keywords in each version, the order of scheduling, and the loop's reports. CPython's suites of
tasks, groups, locks and queues, which `make conformance` runs, cover the rest.
"""

import asyncio
import contextlib
import contextvars
import gc
import inspect
import sys

import pytest
import support

variable = contextvars.ContextVar("variable", default="outer")

factory_gets_every_keyword = (
    "kwargs" in inspect.signature(asyncio.BaseEventLoop.create_task).parameters
)


@contextlib.contextmanager
def python_functions_of_the_loop():
    """Collect the names of the functions of asyncio.base_events that are called in the block."""
    called = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename == asyncio.base_events.__file__:
            called.append(frame.f_code.co_qualname)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield called
    finally:
        sys.setprofile(previous)


class TestFutures:
    def test_create_future(self, loop):
        future = loop.create_future()
        assert isinstance(future, asyncio.Future)
        assert future.get_loop() is loop
        assert not future.done()
        future.cancel()

    async def test_a_replaced_class_is_used_from_the_next_call_on(self, loop, monkeypatch):
        class MyFuture(asyncio.Future):
            pass

        kinds = []
        for _ in range(3):
            kinds.append(type(loop.create_future()))
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.futures, "Future", MyFuture)
                kinds.append(type(loop.create_future()))
        assert kinds == [asyncio.Future, MyFuture] * 3

    def test_done_callbacks_run_in_the_next_iteration_in_order(self, loop):
        order = []
        future = loop.create_future()
        for number in range(5):
            future.add_done_callback(lambda _, n=number: order.append(n))
        future.set_result(None)
        assert not order
        support.turn(loop)
        assert order == [0, 1, 2, 3, 4]

    def test_done_callbacks_get_their_context(self, loop):
        context = contextvars.copy_context()
        context.run(variable.set, "the callback's")
        seen = []
        future = loop.create_future()
        future.add_done_callback(lambda _: seen.append(variable.get()), context=context)
        future.set_result(None)
        support.turn(loop)
        assert seen == ["the callback's"]

    def test_an_exception_that_nobody_asks_for_is_reported(self, loop, reported):
        future = loop.create_future()
        future.set_exception(LookupError("as expected"))
        del future
        gc.collect()
        context = reported.pop(LookupError)
        assert "never retrieved" in context["message"]

    def test_a_failing_done_callback_is_reported(self, loop, reported):
        def fail(_):
            raise LookupError

        future = loop.create_future()
        future.add_done_callback(fail)
        future.set_result(None)
        support.turn(loop)
        reported.pop(LookupError)


class TestTasks:
    def test_create_task(self, loop, run):
        async def main():
            return asyncio.current_task()

        task = loop.create_task(main())
        assert isinstance(task, asyncio.Task)
        assert task.get_loop() is loop
        assert run(task) is task

    def test_starts_in_the_next_iteration(self, loop):
        order = []

        async def main():
            order.append("task")

        loop.call_soon(lambda: (loop.create_task(main()), order.append("created")))
        support.turn(loop)
        assert order == ["created"]
        support.turn(loop, 2)
        assert order == ["created", "task"]

    async def test_tasks_start_in_the_order_of_their_creation(self, loop):
        order = []

        async def step(number):
            for _ in range(3):
                order.append(number)
                await asyncio.sleep(0)

        await asyncio.gather(*(step(number) for number in range(100)))
        assert order == list(range(100)) * 3

    def test_name(self, loop, run):
        task = loop.create_task(asyncio.sleep(0), name="a name")
        assert task.get_name() == "a name"
        run(task)
        task = loop.create_task(asyncio.sleep(0))
        assert task.get_name().startswith("Task-")
        run(task)

    def test_context(self, loop, run):
        async def change():
            variable.set("set in the task")

        context = contextvars.copy_context()
        run(loop.create_task(change(), context=context))
        assert context[variable] == "set in the task"
        run(loop.create_task(change()))
        assert variable.get() == "outer"

    @pytest.mark.parametrize("thing", [None, 42, print, [1]])
    def test_not_a_coroutine(self, loop, thing):
        with pytest.raises(TypeError, match="a coroutine was expected"):
            loop.create_task(thing)

    def test_unknown_keywords(self, loop):
        coro = asyncio.sleep(0)
        with pytest.raises(TypeError):
            loop.create_task(coro, flavour="unknown")
        coro.close()

    @pytest.mark.mgloop_only
    @pytest.mark.parametrize(
        ("args", "keywords"),
        [
            ((), {}),
            ((None, None), {}),
            ((None,), {"coro": None}),
            ((None,), {"loop": None}),
            ((None,), {"self": None}),
            ((None,), {"flavour": "unknown"}),
            ((None,), {"name": "a name", "flavour": "unknown"}),
            ((None,), {"context": None}),
        ],
    )
    def test_wrong_arguments_are_reported_as_by_asyncio(self, loop, args, keywords):
        own = asyncio.SelectorEventLoop()
        try:
            with pytest.raises(TypeError) as expected:
                own.create_task(*args, **keywords)
        finally:
            own.close()
        with pytest.raises(TypeError) as raised:
            loop.create_task(*args, **keywords)
        assert str(raised.value) == str(expected.value)

    @support.needs_no_dev_mode
    @pytest.mark.mgloop_only
    @pytest.mark.parametrize(
        "keywords",
        [
            {},
            {"name": "a name"},
            {"context": contextvars.copy_context()},
            {"name": None, "context": None},
            pytest.param({"eager_start": True}, marks=support.needs_eager_start),
            pytest.param({"eager_start": None}, marks=support.needs_eager_start),
            pytest.param(
                {"name": "a name", "context": None, "eager_start": True},
                marks=support.needs_eager_start,
            ),
        ],
    )
    async def test_no_python_function_of_the_loop_is_called(self, loop, keywords):
        async def nothing():
            pass

        coro = nothing()
        with python_functions_of_the_loop() as called:
            task = loop.create_task(coro, **keywords)
        await task
        assert called == []

    async def test_a_replaced_class_is_used_from_the_next_call_on(self, loop, monkeypatch):
        class MyTask(asyncio.Task):
            pass

        tasks = []
        for _ in range(3):
            tasks.append(loop.create_task(asyncio.sleep(0)))
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.tasks, "Task", MyTask)
                tasks.append(loop.create_task(asyncio.sleep(0)))
        await asyncio.gather(*tasks)
        assert [type(task) for task in tasks] == [asyncio.Task, MyTask] * 3

    @support.needs_eager_start
    def test_further_keywords_reach_the_task(self, loop, run, monkeypatch):
        seen = []

        class MyTask(asyncio.Task):
            def __init__(self, coro, *, flavour, **kwargs):
                super().__init__(coro, **kwargs)
                seen.append((flavour, sorted(kwargs)))

        monkeypatch.setattr(asyncio.tasks, "Task", MyTask)
        task = loop.create_task(asyncio.sleep(0), flavour="known to the task", name="a name")
        assert seen == [("known to the task", ["loop", "name"])]
        assert task.get_name() == "a name"
        run(task)

    @support.needs_eager_start
    async def test_eager_start(self, loop):
        order = []

        async def step():
            order.append("step")
            await asyncio.sleep(0)
            order.append("resumed")

        task = loop.create_task(step(), eager_start=True, name="eager")
        order.append("created")
        assert task.get_name() == "eager"
        await task
        lazy = loop.create_task(step(), eager_start=False)
        order.append("created")
        await lazy
        assert order == ["step", "created", "resumed", "created", "step", "resumed"]

    def test_all_tasks_and_current_task(self, loop, run):
        async def main():
            me = asyncio.current_task()
            other = asyncio.ensure_future(asyncio.sleep(1000))
            assert asyncio.all_tasks() == {me, other}
            assert asyncio.all_tasks(loop) == {me, other}
            await support.cancel(other)

        run(main())
        assert asyncio.all_tasks(loop) == set()
        assert asyncio.current_task(loop) is None

    def test_a_lost_failure_is_reported(self, loop, reported):
        async def fail():
            raise LookupError

        task = loop.create_task(fail())
        support.turn(loop, 3)
        del task
        gc.collect()
        context = reported.pop(LookupError)
        assert "never retrieved" in context["message"]

    def test_a_destroyed_pending_task_is_reported(self, loop, reported):
        async def wait():
            await loop.create_future()

        task = loop.create_task(wait())
        support.turn(loop, 2)
        del task
        gc.collect()
        assert "destroyed but it is pending" in reported.pop()["message"]
        # The report has revived it; 3.14 lists it among the loop's tasks until it is collected.
        gc.collect()


class TestTaskFactories:
    def test_get_and_set(self, loop):
        assert loop.get_task_factory() is None

        def factory(loop, coro, **kwargs):
            return asyncio.Task(coro, loop=loop, **kwargs)

        loop.set_task_factory(factory)
        assert loop.get_task_factory() is factory
        loop.set_task_factory(None)
        assert loop.get_task_factory() is None

    @pytest.mark.parametrize("factory", ["text", 42])
    def test_not_callable(self, loop, factory):
        with pytest.raises(TypeError):
            loop.set_task_factory(factory)

    class MyTask(asyncio.Task):
        pass

    @pytest.fixture
    def calls(self, loop):
        """Set a factory of MyTask; return the arguments of its calls."""
        calls = []

        def factory(*args, **kwargs):
            # CPython 3.13.3 began to pass on every keyword, including those with the value None.
            calls.append((args, {key: value for key, value in kwargs.items() if value is not None}))
            kwargs.pop("flavour", None)
            return self.MyTask(args[1], loop=args[0], **kwargs)

        loop.set_task_factory(factory)
        yield calls
        loop.set_task_factory(None)

    def test_is_called_with_the_loop_and_the_coroutine(self, loop, run, calls):
        coro = asyncio.sleep(0, "result")
        task = loop.create_task(coro)
        assert calls == [((loop, coro), {})]
        assert type(task) is self.MyTask
        assert run(task) == "result"

    def test_gets_the_context_only_if_there_is_one(self, loop, run, calls):
        context = contextvars.copy_context()
        run(loop.create_task(asyncio.sleep(0)))
        run(loop.create_task(asyncio.sleep(0), context=context))
        assert [keywords for _, keywords in calls] == [{}, {"context": context}]

    def test_the_name_reaches_the_task(self, loop, run, calls):
        task = loop.create_task(asyncio.sleep(0), name="a name")
        assert task.get_name() == "a name"
        run(task)

    @pytest.mark.skipif(
        not factory_gets_every_keyword, reason="the factory gets all keywords since CPython 3.13.3"
    )
    def test_gets_every_keyword(self, loop, run, calls):
        run(loop.create_task(asyncio.sleep(0), flavour="known to the factory"))
        assert calls[0][1] == {"flavour": "known to the factory"}

    def test_applies_to_ensure_future_gather_and_groups(self, loop, run):
        created = []

        def factory(loop, coro, **kwargs):
            task = asyncio.Task(coro, loop=loop, **kwargs)
            created.append(task)
            return task

        async def main():
            await asyncio.ensure_future(asyncio.sleep(0))
            await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0))
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0))

        loop.set_task_factory(factory)
        run(main())
        loop.set_task_factory(None)
        assert len(created) == 5

    @support.needs_eager_tasks
    async def test_eager(self, loop):
        order = []

        async def immediate():
            order.append("immediate")
            return "result"

        async def blocking():
            order.append("blocking")
            await asyncio.sleep(0)
            order.append("resumed")

        loop.set_task_factory(asyncio.eager_task_factory)
        task = asyncio.create_task(immediate(), name="a name")
        assert order == ["immediate"]
        assert task.done()
        assert task.get_name() == "a name"
        assert await task == "result"
        task = asyncio.create_task(blocking())
        assert order == ["immediate", "blocking"]
        assert not task.done()
        await task
        assert order == ["immediate", "blocking", "resumed"]

        loop.set_task_factory(None)

    @support.needs_eager_tasks
    async def test_eager_with_an_own_task_class(self, loop):
        class MyTask(asyncio.Task):
            pass

        loop.set_task_factory(asyncio.create_eager_task_factory(MyTask))
        task = asyncio.create_task(asyncio.sleep(0))
        assert type(task) is MyTask
        await task

        loop.set_task_factory(None)


class TestAsyncGenerators:
    @pytest.mark.mgloop_only
    def test_no_python_function_of_the_loop_is_called(self, loop, run):
        async def generate():
            yield 1

        async def main():
            with python_functions_of_the_loop() as called:
                assert [number async for number in generate()] == [1]
            return called

        assert run(main()) == []

    @pytest.mark.parametrize("fails", [False, True])
    def test_shutdown_closes_those_still_open(self, loop, run, reported, fails):
        order = []

        async def generate():
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(0)
                order.append("closed")
                if fails:
                    raise LookupError("as expected")

        async def main():
            generator = generate()
            await generator.__anext__()
            return generator

        generator = run(main())
        assert not order
        run(loop.shutdown_asyncgens())
        assert order == ["closed"]
        if fails:
            assert reported.pop(LookupError)["asyncgen"] is generator

    async def test_an_abandoned_generator_is_closed_by_the_loop(self, loop):
        order = []

        async def generate():
            try:
                yield 1
                yield 2
            finally:
                await asyncio.sleep(0)
                order.append("closed")

        async for _ in generate():
            break
        gc.collect()
        await support.wait_until(lambda: order)
        assert order == ["closed"]

    def test_the_hooks_are_there_only_while_the_loop_runs(self, loop, run):
        def firstiter(generator):
            pass

        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=firstiter)
        try:

            async def main():
                assert sys.get_asyncgen_hooks().firstiter != firstiter
                assert sys.get_asyncgen_hooks().finalizer is not None

            run(main())
            assert sys.get_asyncgen_hooks().firstiter is firstiter
            loop.call_soon(lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                loop.run_forever()
            assert sys.get_asyncgen_hooks().firstiter is firstiter
        finally:
            sys.set_asyncgen_hooks(*before)

    def test_a_generator_begun_after_shutdown_warns(self, loop, run):
        async def generate():
            yield 1

        async def main():
            async for _ in generate():
                pass

        run(loop.shutdown_asyncgens())
        with pytest.warns(ResourceWarning, match="asynchronous generator"):
            run(main())
