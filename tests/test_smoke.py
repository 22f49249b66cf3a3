from tests.support import run_script


def test_args_larger_than_the_sockets_buffer_arrive_whole() -> None:
    args = [{"id": number, "name": f"item {number}" * 5} for number in range(100_000)]
    assert run_script("return args.length + args[99999].id", args=args).result.value == 199_999


def test_a_script_returns_its_value_and_emits_start_and_end() -> None:
    ran = run_script("return {a: args.x + 1}", args={"x": 1})
    assert ran.result.value == {"a": 2}
    assert ran.types == ["start", "end"]
