"""The table of quantisation errors says what a format and a block cost, without a kernel."""

from attn_spec.reports.errors import quantisation

SIZES = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}


def test_more_bits_shorter_blocks_and_keys_without_their_mean_cost_less(capsys):
    assert quantisation.main(["--regimes", "normal", "activations", "--seeds", "1"]) == 0

    header, _, *lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = {tuple(row[:4]): [float(x) for x in row[4:]] for row in rows}
    assert [cell.strip() for cell in header.strip("|").split("|")][4:] == ["normal", "activations"]
    ways = (len(quantisation.FORMATS) * len(quantisation.BLOCKS) + len(quantisation.SCALED)) * (2 + 3)
    assert len(found) == ways == 75
    for tensors in ("k, v", "q, k, v"):
        of = {name: found[tensors, name, "head", "nothing"] for name in quantisation.FORMATS}
        assert of["int8"][0] < of["float8_e4m3fn"][0] < of["float8_e5m2"][0] < of["int4"][0]
        assert found[tensors, "int8", "1", "nothing"][0] < found[tensors, "int8", "head", "nothing"][0]
        scaled = [found[tensors, name, f"{size} numbers", "nothing"] for name, size in SIZES.items()]
        # Power-of-2 scales of 4-bit codes cost more than those with three bits, and 8 bits less than 4.
        assert scaled[0][0] < scaled[2][0] < scaled[1][0]
    for (*way, before), (_, error) in found.items():
        # Keys of activations have a mean far from 0, and columns of other sizes, which take bits of their codes.
        if before == "mean":
            assert error < found[*way, "nothing"][1]
        if before == "rotation" and "4" not in way[1].replace("float8_e4m3fn", "float8"):
            assert error < found[*way, "nothing"][1]
