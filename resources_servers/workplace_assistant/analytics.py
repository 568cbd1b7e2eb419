"""Visits of the company's website, counted by day, and plots of them."""

from collections import defaultdict
from typing import Any

from rollout_kit import tool

from .tables import Row, Table, Tables, quote_all

PLOTTED = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOTS = ("bar", "line", "scatter", "histogram")


class Analytics:
    """Visits never change; `table` has the created plots, which a verdict compares."""

    def __init__(self, tables: Tables) -> None:
        self.visits = tables["analytics_data"]
        self.table = Table("plots", {"plots": []})

    @tool
    def analytics_get_visitor_information_by_id(self, visitor_id: str) -> Any:
        """All visits of a visitor."""
        if not visitor_id:
            return "Visitor ID not provided."
        found = [row for row in self.visits if row["visitor_id"] == visitor_id]
        told = [{**row, "user_engaged": row["user_engaged"] == "True"} for row in found]
        return told or "Visitor not found."

    @tool
    def analytics_create_plot(
        self,
        time_min: str,
        time_max: str,
        value_to_plot: str,
        plot_type: str,
    ) -> str:
        """Plot a value over days (YYYY-MM-DD): 'total_visits', 'session_duration_seconds',
        'user_engaged', 'visits_direct', 'visits_referral', 'visits_search_engine' or
        'visits_social_media', as 'bar', 'line', 'scatter' or 'histogram'."""
        if not time_min:
            return "Start date not provided."
        if not time_max:
            return "End date not provided."
        if value_to_plot not in PLOTTED:
            return f"Value to plot must be one of {quote_all(PLOTTED)}"
        if plot_type not in PLOTS:
            return "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"
        path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
        self.table.add([path])
        return path

    @tool
    def analytics_total_visits_count(self, time_min: str = "", time_max: str = "") -> Any:
        """Visits by day (YYYY-MM-DD)."""
        return {day: len(rows) for day, rows in self._by_day(time_min, time_max).items()}

    @tool
    def analytics_engaged_users_count(self, time_min: str = "", time_max: str = "") -> Any:
        """Engaged users by day (YYYY-MM-DD)."""
        days = self._by_day(time_min, time_max)
        return {day: _count(rows, "user_engaged", "True") for day, rows in days.items()}

    @tool
    def analytics_traffic_source_count(
        self, time_min: str = "", time_max: str = "", traffic_source: str = ""
    ) -> Any:
        """Visits by day (YYYY-MM-DD) from 'direct', 'referral', 'search engine' or 'social
        media'."""
        if not traffic_source:
            return self.analytics_total_visits_count(time_min, time_max)
        days = self._by_day(time_min, time_max)
        return {day: _count(rows, "traffic_source", traffic_source) for day, rows in days.items()}

    @tool
    def analytics_get_average_session_duration(self, time_min: str = "", time_max: str = "") -> Any:
        """Mean duration of the sessions by day (YYYY-MM-DD), in seconds."""
        days = self._by_day(time_min, time_max)
        durations = {
            day: [float(row["session_duration_seconds"]) for row in rows]
            for day, rows in days.items()
        }
        return {day: sum(each) / len(each) for day, each in durations.items()}

    def _by_day(self, time_min: str, time_max: str) -> dict[str, list[Row]]:
        last = time_max or "9999"
        days: dict[str, list[Row]] = defaultdict(list)
        for row in self.visits:
            if time_min <= row["date_of_visit"] <= last:
                days[row["date_of_visit"]].append(row)
        return dict(sorted(days.items()))


def _count(rows: list[Row], field: str, value: str) -> int:
    return sum(row[field] == value for row in rows)
