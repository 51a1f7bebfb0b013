"""How does a result look on a terminal?"""
