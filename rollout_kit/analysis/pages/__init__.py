"""What the pages of the viewer and of running collections share: headers, policy, the check of who
asks, and files that both use: styles, formats, plots, and libraries of others."""
