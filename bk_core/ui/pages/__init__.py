"""The pages, a module each: what they ask the cluster for, and how they show it."""
