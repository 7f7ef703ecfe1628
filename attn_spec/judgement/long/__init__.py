"""Long answers and gradients, judged in blocks of query rows whose memory is bounded."""
