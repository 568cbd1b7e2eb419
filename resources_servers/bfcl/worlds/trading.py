"""A trading account."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, ClassVar

from .world import World

NOW = datetime(2024, 9, 1, 10, 30, tzinfo=UTC)

DAY, SECOND = "%Y-%m-%d", "%Y-%m-%d %H:%M:%S"

STOCKS = """\
AAPL 227.16 0.17 2.552 227.11 227.09
GOOG 2840.34 0.24 1.123 2835.67 2842.15
TSLA 667.92 -0.12 1.654 671.15 668.20
MSFT 310.23 0.09 3.234 309.88 310.11
NVDA 220.34 0.34 1.234 220.45 220.67
ALPH 1320.45 -0.08 1.567 1321.12 1325.78
OMEG 457.23 0.12 2.345 456.78 458.12
QUAS 725.89 -0.03 1.789 726.45 728.00
NEPT 88.34 0.19 0.654 88.21 88.67
SYNX 345.67 0.11 2.112 345.34 346.12
ZETA 22.09 -0.05 0.789 22.12 22.34
"""
"""Price, change, volume, moving averages of 5 and 20 days."""

FIGURES = ("price", "percent_change", "volume", "MA(5)", "MA(20)")

SYMBOLS = {
    **{"Apple": "AAPL", "Google": "GOOG", "Tesla": "TSLA", "Microsoft": "MSFT", "Nvidia": "NVDA"},
    **{"Zeta Corp": "ZETA", "Alpha Tech": "ALPH", "Omega Industries": "OMEG"},
    **{"Quasar Ltd.": "QUAS", "Neptune Systems": "NEPT", "Synex Solutions": "SYNX"},
    **{"Amazon": "AMZN", "Gorilla": "GORI"},
}

SECTORS = {"Technology": ["AAPL", "GOOG", "MSFT", "NVDA"], "Automobile": ["TSLA", "F", "GM"]}

Reply = dict[str, Any]


def _order(number: int, kind: str, symbol: str, price: float, amount: int, status: str) -> Reply:
    return {
        **{"id": number, "order_type": kind, "symbol": symbol},
        **{"price": price, "amount": amount, "status": status},
    }


class TradingBot(World):
    _defaults: ClassVar[dict[str, Any]] = {
        "orders": {
            12345: _order(12345, "Buy", "AAPL", 210.65, 10, "Completed"),
            12446: _order(12446, "Sell", "GOOG", 2840.56, 5, "Pending"),
        },
        "account_info": {"account_id": 12345, "balance": 10000.0, "binding_card": 1974202140965533},
        "authenticated": False,
        "market_status": "Closed",
        "order_counter": 12446,
        "stocks": {
            line.split()[0]: dict(zip(FIGURES, map(float, line.split()[1:]), strict=True))
            for line in STOCKS.splitlines()
        },
        "watch_list": ["NVDA"],
        "transaction_history": [],
    }

    def __init__(self, scenario: dict[str, Any], long: dict[str, Any] | None) -> None:
        super().__init__(scenario, long)
        self.orders = {
            int(key) if isinstance(key, str) and key.isdigit() else key: order
            for key, order in self.orders.items()
        }
        self._random = Random(scenario.get("random_seed", 1053520))

    def get_current_time(self) -> Reply:
        return {"current_time": NOW.strftime("%I:%M %p")}

    def get_symbol_by_name(self, name: str) -> Reply:
        return {"symbol": SYMBOLS.get(name, "Stock not found")}

    def get_stock_info(self, symbol: str) -> Reply:
        if symbol not in self.stocks:
            return {"error": f"Stock with symbol '{symbol}' not found."}
        if self._long is None:
            return self.stocks[symbol]
        more = {"MA(5)": self._long["ma_5"], "MA(20)": self._long["ma_20"]}
        return {**self.stocks[symbol], **more}

    def get_order_details(self, order_id: int) -> Reply:
        if order_id not in self.orders:
            known = f"Here is the list of orders_id: {[*self.orders]}"
            return {"error": f"Order with ID {order_id} not found.{known}"}
        order = self.orders[order_id]
        if self._long is None:
            return order
        texts = self._long["order_detail"].items()
        return {
            **order,
            "metadata": {key: text.replace("{symbol}", order["symbol"]) for key, text in texts},
        }

    def cancel_order(self, order_id: int) -> Reply:
        if order_id not in self.orders:
            return {"error": f"Order with ID {order_id} not found."}
        if self.orders[order_id]["status"] == "Completed":
            return {"error": f"Can't cancel order {order_id}. Order is already completed."}
        self.orders[order_id]["status"] = "Cancelled"
        return {"order_id": order_id, "status": "Cancelled"}

    def place_order(self, order_type: str, symbol: str, price: float, amount: int) -> Reply:
        if not self.authenticated:
            return {"error": "User not authenticated. Please log in to place an order."}
        if symbol not in self.stocks:
            return {"error": f"Invalid stock symbol: {symbol}"}
        if price <= 0 or amount <= 0:
            return {"error": "Price and amount must be positive values."}
        if order_type.lower() == "buy":
            cost, balance = float(price) * int(amount), self.account_info.get("balance", 0)
            if cost > balance:
                return {
                    "error": f"Insufficient funds: required ${cost:.2f} but only ${balance:.2f}"
                    " available."
                }
        price, number = float(price), self.order_counter
        self.orders[number] = _order(number, order_type, symbol, price, amount, "Open")
        self.order_counter += 1
        return {
            **{"order_id": number, "order_type": order_type, "status": "Pending"},
            **{"price": price, "amount": amount},
        }

    def withdraw_funds(self, amount: float) -> Reply:
        if not self.authenticated:
            return {"error": "User not authenticated. Please log in to make a transaction."}
        if self.market_status != "Open":
            return {"error": "Market is closed. Transactions are not allowed."}
        if amount <= 0:
            return {"error": "Transaction amount must be positive."}
        if amount > self.account_info["balance"]:
            return {"error": "Insufficient funds for withdrawal."}
        return self._transfer("withdrawal", amount, -amount, "Withdrawal successful")

    def fund_account(self, amount: float) -> Reply:
        if not self.authenticated:
            return {"error": "User not authenticated. Please log in to fund the account."}
        if amount <= 0:
            return {"error": "Funding amount must be positive."}
        return self._transfer("deposit", amount, amount, "Account funded successfully")

    def _transfer(self, kind: str, amount: float, change: float, status: str) -> Reply:
        self.account_info["balance"] += change
        first = int(NOW.timestamp())
        at = self._random.randint(first, first + int(timedelta(days=1).total_seconds()))
        when = datetime.fromtimestamp(at, UTC).strftime(SECOND)
        self.transaction_history.append({"type": kind, "amount": amount, "timestamp": when})
        return {"status": status, "new_balance": self.account_info["balance"]}

    def get_account_info(self) -> Reply:
        if not self.authenticated:
            return {"error": "User not authenticated. Please log in to view account information."}
        return self.account_info

    def trading_login(self, username: str, password: str) -> Reply:
        if self.authenticated:
            return {"status": "Already logged in"}
        self.authenticated = True
        return {"status": "Logged in successfully"}

    def trading_get_login_status(self) -> Reply:
        return {"status": bool(self.authenticated)}

    def trading_logout(self) -> Reply:
        if not self.authenticated:
            return {"status": "No user is currently logged in"}
        self.authenticated = False
        return {"status": "Logged out successfully"}

    def remove_stock_from_watchlist(self, symbol: str) -> Reply:
        if not self.authenticated:
            return {"error": "User not authenticated. Please log in to modify the watchlist."}
        if symbol not in self.watch_list:
            return {"error": f"Stock {symbol} not found in watchlist."}
        self.watch_list.remove(symbol)
        return {"status": f"Stock {symbol} removed from watchlist successfully."}

    def get_watchlist(self) -> Any:
        if not self.authenticated:
            return ["Error: User not authenticated. Please log in to view the watchlist."]
        if self._long is not None:
            return [*self.watch_list, *self._long["watch_list"]]
        return {"watchlist": self.watch_list}

    def get_order_history(self) -> Any:
        if not self.authenticated:
            return [{"error": "User not authenticated. Please log in to view order history."}]
        return {"history": [*self.orders]}

    def get_transaction_history(
        self, start_date: str | None = None, end_date: str | None = None
    ) -> Any:
        if not self.authenticated:
            return [{"error": "User not authenticated. Please log in to view transaction history."}]
        start = datetime.strptime(start_date, DAY) if start_date else datetime.min
        end = datetime.strptime(end_date, DAY) if end_date else datetime.max
        found = [
            each
            for each in self.transaction_history
            if start <= datetime.strptime(each["timestamp"], SECOND) <= end
        ]
        more = self._long["transaction_history"] if self._long is not None else []
        return {"transaction_history": [*found, *more]}

    def get_available_stocks(self, sector: str) -> Reply:
        found = [*SECTORS.get(sector, [])]
        if found and self._long is not None:
            found += self._long[sector.lower()]
        return {"stock_list": found}

    def filter_stocks_by_price(
        self, stocks: list[str], min_price: float, max_price: float
    ) -> Reply:
        prices = [(each, self.stocks.get(each, {}).get("price", 0)) for each in stocks]
        found = [each for each, price in prices if price >= min_price and price <= max_price]
        return {"filtered_stocks": found}

    def add_to_watchlist(self, stock: str) -> Reply:
        if stock not in self.watch_list and stock in self.stocks:
            self.watch_list.append(stock)
        return {"watchlist": self.watch_list}

    def notify_price_change(self, stocks: list[str], threshold: float) -> Reply:
        changed = [
            each
            for each in stocks
            if each in self.stocks and abs(self.stocks[each]["percent_change"]) >= threshold
        ]
        if changed:
            return {"notification": f"Stocks {', '.join(changed)} have significant price changes."}
        return {"notification": "No significant price changes in the selected stocks."}
