"""How is one truth kept? Each parameter has one holder of its optimizer state, or bit-identical replicas of it."""
