"""Problems that a search draws: shapes, values, options and sizes, as Hypothesis strategies and as lists."""
