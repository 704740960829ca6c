"""What `stowplan optimize` understands, and what it says when it does not."""

import pytest

from app.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either an ONNX file or --sample"),
        (["m.onnx", "--sample", "squeezenet"], "either an ONNX file or --sample"),
        (["m.onnx", "--input", "x"], "expected NAME=VALUE, found 'x'"),
        (["m.onnx", "--input", "x=1xtwo"], "expected dimensions such as 1x3x224x224, found '1xtwo'"),
        (["m.onnx", "--value", "sr=fast"], "expected a number, true or false, found 'fast'"),
        (["m.onnx", "--range", "ids=5"], "expected LOW:HIGH, found '5'"),
    ],
)
def test_what_cannot_be_understood_is_told_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["optimize", *arguments]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_no_service_at_the_address_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", "--sample", "squeezenet", "--url", "http://127.0.0.1:9"]) == 2
    assert "make run" in capsys.readouterr().err
