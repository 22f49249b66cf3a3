from tests.support import run_script


def test_a_script_returns_its_value_and_emits_start_and_end() -> None:
    ran = run_script("return {a: args.x + 1}", args={"x": 1})
    assert ran.result.value == {"a": 2}
    assert ran.types == ["start", "end"]
