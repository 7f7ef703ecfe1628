"""Judgement of long answers, in blocks of rows whose memory is bounded."""
