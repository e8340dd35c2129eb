"""Parts of `benchmarks/soak`: what clients do, what happens to the services, what is sampled, and how it is judged."""
