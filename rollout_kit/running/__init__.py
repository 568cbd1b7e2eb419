"""Where servers run, how they are started, and how they are kept alive."""
