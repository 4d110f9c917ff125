"""What results are held to: the references that compute a file (`reference`), their known defects, and the machine (`doctor`)."""
