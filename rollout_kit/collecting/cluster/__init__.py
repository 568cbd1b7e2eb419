"""One collection on several processes or machines: attempts that workers lease from a driver.

Here: the leases, the exchange between driver and workers, and what starts workers. Not here: what
an attempt does (`collecting`), and the servers themselves (`launch`).
"""
