"""The price list: what is taken, and what is refused with which line."""

from pathlib import Path

import pytest

from billing_svc import prices
from billing_svc.price_file import PriceFile
from billing_svc.prices import PriceListError

GOOD = """\
version: "1"
models:
  small:
    input_nanousd: 20
    cached_input_nanousd: 5
    output_nanousd: 60
"""
ANY = """\
  "*": {input_nanousd: 2, cached_input_nanousd: 1, output_nanousd: 3}
"""


def test_a_model_has_its_price_or_that_of_any_model() -> None:
    named = prices.parse(GOOD, "p.yaml")
    assert named.price_of("small") == prices.Price(20, 5, 60, "1")
    assert named.price_of("other") is None
    assert prices.parse(GOOD + ANY, "p.yaml").price_of("other") == prices.Price(2, 1, 3, "1")


def test_the_list_that_ships_is_good() -> None:
    file = Path(prices.__file__).with_name("prices.yaml")
    assert PriceFile(file).current.price_of("anything") is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"p\.yaml:1: file: empty"),
        ("version: [", r"p\.yaml:1: file: not YAML"),
        (GOOD + "  broken: [1\n", r"p\.yaml:\d+: file: not YAML"),
        (
            GOOD.replace("60", "-1"),
            r"p\.yaml:6: models\.small\.output_nanousd: must be a whole number",
        ),
        (
            GOOD.replace("60", "0.5"),
            r"p\.yaml:6: models\.small\.output_nanousd: must be a whole number",
        ),
        (
            GOOD.replace("60", "'60'"),
            r"p\.yaml:6: models\.small\.output_nanousd: must be a whole number",
        ),
        (
            GOOD.replace("60", "99999999999"),
            r"p\.yaml:6: models\.small\.output_nanousd: must be a whole number",
        ),
        (
            GOOD.replace("5\n", "21\n"),
            r"p\.yaml:5: models\.small\.cached_input_nanousd: must not be above input",
        ),
        (
            GOOD.replace("    output_nanousd: 60\n", ""),
            r"p\.yaml:3: models\.small: output_nanousd is missing",
        ),
        (GOOD + "    discount: 1\n", r"p\.yaml:7: models\.small\.discount: unknown"),
        (
            GOOD + "    input_nanousd: 1\n",
            r"p\.yaml:7: models\.small\.input_nanousd: stands here twice",
        ),
        (GOOD.replace('"1"', '""'), r"p\.yaml:1: version: must be a text"),
        ("version: '1'\n", r"p\.yaml:1: file: models is missing"),
        ("version: '1'\nmodels: {}\n", r"p\.yaml:2: models: name 1 to 256"),
        ("version: '1'\nmodels: [a]\n", r"p\.yaml:2: models: must be a mapping"),
        ("version: [1]\nmodels: {}\n", r"p\.yaml:1: version: must be a text"),
        ("\x00", r"p\.yaml:1: file: not YAML"),
    ],
)
def test_a_wrong_list_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(PriceListError, match=message):
        prices.parse(text, "p.yaml")


def test_a_changed_file_is_taken_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(GOOD)
    file = PriceFile(path)
    assert not file.reload()
    for wrong in (GOOD.replace("60", "x"), GOOD.replace("60", "61"), "\xff"):
        path.write_text(wrong, encoding="latin-1")  # not a number; no new version; not UTF-8
        assert not file.reload()
        assert file.current == prices.parse(GOOD, "p")
    path.write_text(GOOD.replace('"1"', '"2"').replace("60", "61"))
    assert file.reload()
    assert file.current.price_of("small") == prices.Price(20, 5, 61, "2")
    path.unlink()
    assert not file.reload()
    assert file.current.version == "2"


def test_no_start_without_a_good_list(tmp_path: Path) -> None:
    with pytest.raises(PriceListError, match=r"prices\.yaml:1: cannot be read"):
        PriceFile(tmp_path / "prices.yaml")
