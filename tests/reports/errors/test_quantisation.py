"""The table of quantisation errors says what a format and a block cost, without a kernel."""

from attn_spec.reports.errors import quantisation


def test_more_bits_shorter_blocks_and_keys_without_their_mean_cost_less(capsys):
    assert quantisation.main(["--regimes", "normal", "activations", "--seeds", "1"]) == 0

    header, _, *lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {tuple(row[:4]): [float(x) for x in row[4:]] for row in rows}
    assert [cell.strip() for cell in header.strip("|").split("|")][4:] == ["normal", "activations"]
    assert len(found) == 2 * 3 * 3 * 2
    for tensors in ("k, v", "q, k, v"):
        of = {name: found[tensors, name, "head", "no"] for name in quantisation.FORMATS}
        assert of["int8"][0] < of["float8_e4m3fn"][0] < of["float8_e5m2"][0]
        assert found[tensors, "int8", "1", "no"][0] < found[tensors, "int8", "head", "no"][0]
    for (*way, smooths), (_, error) in found.items():
        # Keys of activations have a mean far from 0, which takes bits of their codes.
        assert smooths == "yes" or found[*way, "yes"][1] < error
