"""`.pt2` files of torch.export to Relax modules (`load.from_torch`), read without running what they hold (`archive`)."""
